"""What an indexed pair holds, for tests."""


def document_of(reader, number):
    """Return the tokens of a document, counted from 0."""
    start, end = reader.token_starts(range(number, number + 1))
    return reader.tokens[start:end].tolist()
