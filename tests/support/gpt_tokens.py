"""Read the tokens of a pair of index and data file."""


def read_document_tokens(reader, number):
    """Return the tokens of a document, counted from 0."""
    start, end = reader.find_token_starts(range(number, number + 1))
    return reader.tokens[start:end].tolist()
