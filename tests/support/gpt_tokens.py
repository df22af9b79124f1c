"""Read the tokens of a pair of index and data file."""


def read_document_tokens(reader, number):
    """Return the tokens of a document of a data set; ``number`` counts the documents from 0.

    ``reader.tokens`` has the tokens of all documents, one behind the other.
    """
    # The starts of the document and of the one behind it.
    start, end = reader.find_token_starts(range(number, number + 1))
    return reader.tokens[start:end].tolist()
