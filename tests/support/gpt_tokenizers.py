"""Small byte-level BPE tokenizers in both forms, for tests."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|endoftext|>"
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o"), ("'", "s")]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def make_vocabulary():
    """Return ids by token: 256 bytes, the 7 merges in order, the end of a document; 264 in all."""
    # ``LETTERS`` has a letter for each byte, ``MERGES`` pairs of tokens that are joined to one, and
    # ``END`` is the token that ends a document.
    tokens = [*LETTERS, *("".join(pair) for pair in MERGES), END]
    return {token: number for number, token in enumerate(tokens)}


def write_two_files(folder, *, ids=None, merges=MERGES):
    """Write vocab.json and merges.txt; ``ids`` None: those of ``make_vocabulary``."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(make_vocabulary() if ids is None else ids))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return folder


def write_one_file(folder, change=lambda document: None):
    """Write tokenizer.json after ``change`` has edited the document in place.

    It has the same tokens as the two files of ``write_two_files``, but the end of a document,
    ``END``, is a special token that the library adds.
    """
    folder.mkdir(exist_ok=True)
    library = Tokenizer(
        models.BPE({k: v for k, v in make_vocabulary().items() if k != END}, MERGES)
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([END])
    document = json.loads(library.to_str())
    change(document)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def encode_by_hand(text):
    """Return the ids of an ASCII text, computed without a library.

    GPT-2 first cuts a text into words, each with the blank before it. That is not done here: no
    merge joins two words.

    ``MERGES`` has 7 pairs of tokens that are joined to one, such as "h" and "e"; their order is
    that of learning. ``Ġ`` is the letter that stands for a blank in byte-level tokens.
    """
    vocabulary = make_vocabulary()
    tokens = ["Ġ" if letter == " " else letter for letter in text]  # the byte-level blank
    for first, second in MERGES:  # earlier merges first, each wherever its two tokens meet
        place = 0
        while place < len(tokens) - 1:
            if tokens[place] == first and tokens[place + 1] == second:
                tokens[place : place + 2] = [first + second]
            place += 1
    return [vocabulary[token] for token in tokens]
