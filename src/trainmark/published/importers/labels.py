"""Read the names of runs: labels such as ``A100单机8卡（1x8）``, device names, flags, settings.

A world is the number of machines and the number of devices (cards) of each: ``1x8``.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from trainmark.devices import peaks
from trainmark.published.importers.vocabulary import WORDS, strip_markup
from trainmark.spec import Message, message

_NUMERALS: dict[str, int] = WORDS["world"]["numerals"]
_MACHINE_WORD: str = WORDS["world"]["machines"]  # the word behind the number of machines
_CARD_WORD: str = WORDS["world"]["cards"]  # the word behind the number of cards
# The patterns of a world have its two numbers as groups.
_COUNT = rf"[0-9]{{1,6}}|[{''.join(_NUMERALS)}]"
_WORLD = re.compile(r"\(\s*([0-9]{1,6})\s*[xX*]\s*([0-9]{1,6})\s*(?:\*\s*[0-9]+\s*G[iB]*)?\)")
# `H100 1x8`; not `4090 x8`.
_BARE_WORLD = re.compile(r"(?:^|\s)([0-9]{1,2}) ?[xX] ?([0-9]{1,3})\s*$")
_ROW_NUMBER = re.compile(r"^\[[0-9]+\]\s+")  # rows of our own pages: `[1] A100 1 node x 2 (1x2)`
_MACHINES_AND_CARDS = re.compile(rf"({_COUNT}){_MACHINE_WORD}({_COUNT}){_CARD_WORD}")
# The number of machines is not printed: the first group is empty.
_ALL_CARDS = re.compile(rf"(?<![0-9A-Za-z])()([0-9]{{1,5}}){_CARD_WORD}")
_ENGLISH_NODES = re.compile(r"\s([0-9]{1,6}) nodes? x ([0-9]{1,6})\s*$")
# Names of configuration files, `config_A100x1x8.py`: the first group may be the device, the others
# are the world.
_CONFIG_FILE_NAME = re.compile(r"(?:config_)?(.*?)x([0-9]{1,6})x([0-9]{1,6})(?:\.?py)?")
_PRODUCT_NAME = re.compile(r"[A-Za-z]{0,6}[-_]?[A-Z]?[0-9]{2,5}")  # not `TP1PP1SH2SP8A10080G`
# `8x A100`.
_COUNT_AND_PRODUCT = re.compile(r"([0-9]{1,5})\s*[xX*]\s+?(\S.*)|([0-9]{1,5})[xX]([A-Za-z].*)")
_MACHINE_NAME = re.compile(r"(?i)\b(?:dgx|hgx|nodes?|machines?|servers?)")
_COUNT_OF_DEVICES = re.compile(
    r"(?i)(?<![\w.])([0-9]{1,5})\s*(?:x\s*)?(?:gpus?|devices?|cards?|accelerators?|npus?)\b"
)
_COUNT_BEFORE_PRODUCT = re.compile(r"(?<![\w.])[0-9]{1,5}[xX×](?=[A-Za-z])")  # `8xH100`
_MEMORY_OR_FORM_FACTOR = re.compile(r"(?i)[0-9]+-?g(?:i?b)?|sxm[0-9]?|pcie|nvl|hbm[0-9]?e?")
_COUNT_OF_PRODUCTS = re.compile(r"(?<![\w.])([0-9]{1,5})\s*[xX×]\s*([A-Za-z][\w-]*)")
_VENDORS = {*WORDS["names"]["vendors"], "tesla", "instinct", "huawei", "google", "aws"}
_CHANGE = re.compile(r"(\w[\w .-]{0,60}?) ?= ?(\"[^\"]*\"|[^\s,;()]+)")
_FLAG = re.compile(r"(?<!\S)--([A-Za-z][\w-]*)(?:[ =](?!-)(\S+))?")
_FALSE_WORDS = {"0", "false", "no", "off"}
_SEPARATORS_OF_WORLD = " -/*\\,"  # between a device and its world
_UNKNOWN_WORLD = (0, 0)  # numbers of machines, and of devices of each
_USUAL_CARDS_PER_MACHINE = 8  # a larger number is taken for the cards of all machines


class Label(NamedTuple):
    """The device and world that a label names; None: it does not name them.

    Args:
        device: as printed.
        nnodes: number of machines.
        nproc: number of devices of each machine.
        notes: a contradiction of the label with itself.
    """

    device: str | None
    nnodes: int | None
    nproc: int | None
    notes: list[Message]


def read_label(label: str, config_file: str = "", world_of_columns: str = "") -> Label:
    """Return the device and world that a label names, with a note if it contradicts itself.

    The world is the number of machines, and of devices of each. It is read from the label, ``1x8``,
    else from other columns of the row, else from the name of the configuration file, else from
    words or counts in the label: ``四机32卡``, ``8x A100``.

    Args:
        label: the name of a row: ``A100 1 node x 8 (1x8)``.
        config_file: name of the configuration file: ``config_A100x1x8.py``; empty: none.
        world_of_columns: the world in other columns: ``(1x8)``; empty: none.
    """
    text = _ROW_NUMBER.sub("", strip_markup(label)).replace("×", "x")  # without `[1] ` before it
    world_in_label = _WORLD.search(text) or _BARE_WORLD.search(text)  # in brackets, or not
    # The two groups are the number of machines and that of devices of each.
    printed_world = world_in_label or _WORLD.fullmatch(world_of_columns)
    head = text[: world_in_label.start()].rstrip() if world_in_label else text  # before the world
    # `四机32卡`: four machines, 32 cards; these two numbers are its groups.
    counting_words = _find_counting_words(head, printed_world)
    # Its groups: the device, the number of machines, the number of devices of each.
    file_name = _CONFIG_FILE_NAME.fullmatch(strip_markup(config_file))
    device = _read_device(head, counting_words, printed_world, file_name)
    if printed_world:
        world = int(printed_world[1]), int(printed_world[2])
    elif file_name:
        world = int(file_name[2]), int(file_name[3])
    elif counting_words:
        world = _read_counting_words(counting_words)
    else:
        world = _UNKNOWN_WORLD
    if 0 in world:  # unknown, or printed as 0: `8x A100` may still tell it
        return _read_counted_label(text, device)
    notes = []
    if counting_words and not _agree_with_world(counting_words, world):
        words = counting_words[0].strip()
        world_text = f"{world[0]}x{world[1]}"
        notes = [message("label_contradicts_itself", words=words, world=world_text)]
    nnodes, nproc = world
    return Label(device or None, nnodes, nproc, notes)


def _read_device(
    head: str,
    counting_words: re.Match[str] | None,
    printed_world: re.Match[str] | None,
    file_name: re.Match[str] | None,
) -> str:
    """Return the device in a label or in the name of the configuration file; empty: none.

    In the label it is the text before the words that count machines and cards, else before the
    world. A label without such words and without a world may name anything, so it is not taken for
    a device.

    Args:
        head: the label before its world.
        counting_words: the words in it that count machines and cards, ``2 nodes x 8``; None: none.
        printed_world: the world in the label or in other columns, ``(2x8)``; None: none is printed.
        file_name: parts of the configuration file's name, as groups: device, machines, devices of
            each; None: there is no file, or its name has another form.
    """
    device = ""
    if counting_words:
        device = head[: counting_words.start()].strip(_SEPARATORS_OF_WORLD)
    elif printed_world:
        device = head.strip(_SEPARATORS_OF_WORLD)
    if not device and file_name and _PRODUCT_NAME.fullmatch(file_name[1]):
        device = file_name[1]
    return device


def _find_counting_words(head: str, printed_world: re.Match[str] | None) -> re.Match[str] | None:
    """Return the words that count machines and cards: ``四机32卡``, ``16卡``, ``2 nodes x 8``.

    The first group is the number of machines, empty if it is not printed; the second is that of
    cards.

    Args:
        head: text of the label before its world.
        printed_world: the world in the label or in other columns of its row, ``(4x8)``: numbers of
            machines and of devices of each; None: none is printed.
    """
    if printed_world:
        # `H1004机32卡（4x8）`: the device `H100` and the number `4` of machines are written as one
        # number. The world tells that only the `4` counts machines.
        exact = re.search(rf"({printed_world[1]}){_MACHINE_WORD}({_COUNT}){_CARD_WORD}", head)
        if exact:
            return exact
    # `四机32卡`, `2 nodes x 8`, `16卡`.
    return (
        _MACHINES_AND_CARDS.search(head) or _ENGLISH_NODES.search(head) or _ALL_CARDS.search(head)
    )


def _count_nodes_and_cards(counting_words: re.Match[str]) -> tuple[int, int]:
    """Return the machines and cards that words count, as digits or as a numeral: ``四``, four.

    Args:
        counting_words: its groups are the number of machines, empty if it is not printed, and that
            of cards.
    """
    nodes_text, cards_text = counting_words.groups()
    cards = _NUMERALS.get(cards_text) or int(cards_text)
    if not nodes_text:  # a guess: about 8 cards in each machine
        nodes, _ = divide_into_machines(cards)
        return nodes, cards
    return _NUMERALS.get(nodes_text) or int(nodes_text), cards


def _read_counting_words(counting_words: re.Match[str]) -> tuple[int, int]:
    """Return the machines that words count, and the cards of each.

    More than 8 cards are taken for those of all machines: ``四机32卡``, four machines and 32 cards,
    has 8 in each. If they cannot be divided equally, they are taken for those of each machine.

    Args:
        counting_words: its groups are the number of machines, empty if it is not printed, and that
            of cards.
    """
    nodes, cards = _count_nodes_and_cards(counting_words)
    # A label may print 0 machines.
    is_total = cards > _USUAL_CARDS_PER_MACHINE and nodes > 0 and cards % nodes == 0
    return nodes, cards // nodes if is_total else cards


def _agree_with_world(counting_words: re.Match[str], world: tuple[int, int]) -> bool:
    """Tell whether words such as ``四机32卡`` count the machines and cards of a world.

    They may count the cards of each machine or of all machines.

    Args:
        counting_words: its groups are the number of machines, if it is printed, and that of cards.
        world: number of machines, and of cards of each.
    """
    # More than 8 printed cards are first taken for those of all machines.
    if _read_counting_words(counting_words) == world:
        return True
    # As printed, the words may count all cards, whatever their number.
    nodes, cards = _count_nodes_and_cards(counting_words)
    # Without a printed number of machines, ``nodes`` was only inferred from the cards.
    has_nodes = bool(counting_words[1])
    are_nodes_equal = nodes == world[0] or not has_nodes
    return cards == world[0] * world[1] and are_nodes_equal


def _read_counted_label(text: str, device: str) -> Label:
    """Return the device and number in a label such as ``8x A100``, if it has a known product.

    Another label, such as ``4x LoRA``, counts nothing: then only ``device`` is returned.

    Args:
        text: the label without marks of Markdown and HTML.
        device: the device that was read from the label before; empty: none.
    """
    name, count = split_count(text)
    if not count or not peaks.find_products(name):
        return Label(device or None, nnodes=None, nproc=None, notes=[])
    if is_machine(name):  # `2x DGX A100`: how many devices a machine has is not known
        return Label(name, nnodes=count, nproc=None, notes=[])
    nnodes, nproc = divide_into_machines(count)
    return Label(name, nnodes, nproc, notes=[])


def is_machine(name: str) -> bool:
    """Tell whether a name is that of a machine with several devices: ``DGX A100``, ``A3 (h100-8)``.

    It is if it has a word such as ``server``, or names a known product and has other words than
    those of the product, its vendor, memory and form factor.
    """
    if _MACHINE_NAME.search(name):
        return True
    products = peaks.find_products(name)  # entries of all products that the name can mean
    if not products:
        return False
    known_words = set(_VENDORS)
    for product in products:
        known_words.update(product["product"].lower().split())
    for word in re.findall(r"[a-z0-9]+", name.lower()):
        if word not in known_words and not _MEMORY_OR_FORM_FACTOR.fullmatch(word):
            return True
    return False


def split_count(text: str) -> tuple[str, int]:
    """Return ``A100`` and 8 of ``8 x A100``; if there is no count, the text and 0."""
    match = _COUNT_AND_PRODUCT.fullmatch(strip_markup(text).replace("×", "x"))
    if match is None:
        return text, 0
    # The number and name of `8 x A100` are the first two groups, those of `8xA100` the other two.
    count = match[1] or match[3]
    name = match[2] or match[4]
    return name.partition(",")[0].strip(), int(count)  # behind a comma there are other facts


def divide_into_machines(count: int) -> tuple[int, int]:
    """Return the machines and the devices of each, as a guess from their total number.

    Up to 15 devices are in one machine; 16 and more in machines of 8 or a few more. A number that
    cannot be divided equally is taken for that of one machine.
    """
    machines = max(1, count // _USUAL_CARDS_PER_MACHINE)
    if count % machines != 0:
        return 1, count
    return machines, count // machines


def count_devices(text: str) -> int | None:
    """Return the number of devices in a text, such as a heading; None: it has none.

    It stands before a word for devices, ``LoRA on 4 GPUs``, or before a known product, ``8x A100``.
    """
    count = _COUNT_OF_DEVICES.search(text)
    if count is not None:
        return int(count[1])
    # Its groups are the number and a word, which may also be something else: `4x LoRA`.
    product_count = _COUNT_OF_PRODUCTS.search(text)
    if product_count is not None and peaks.find_products(product_count[2]):
        return int(product_count[1])
    return None


def find_device(text: str) -> str | None:
    """Return the part of a heading that names a known product; None: it names none.

    It is the product, with the word before it if that narrows it down, and the memory and form
    factor after it: ``V100 32G`` of ``DGX-1 (8x V100 32G)``.
    """
    # Counts are left out: `8xH100` becomes `H100`.
    words = re.findall(r"[^\s,;()（）/]+", _COUNT_BEFORE_PRODUCT.sub("", strip_markup(text)))
    most_exact = None
    min_products = math.inf  # how many products the most exact name can mean
    for index in range(len(words)):
        name = _read_product(words, index)
        if name is None:
            continue
        # A name that can mean fewer products is more exact.
        num_products = len(peaks.find_products(name))
        # Of equally exact names the last, which is in brackets: `DGX A100 (8x A100 80GB)`.
        if num_products <= min_products:
            most_exact = name
            min_products = num_products
    return most_exact


def _read_product(words: list[str], index: int) -> str | None:
    """Return the product that a word names, with the words around it that narrow it down.

    None: the word names no known product.

    Args:
        words: of a heading.
        index: of the word.
    """
    # All known products that the word can mean: `A100` means each kind of A100.
    products = peaks.find_products(words[index])
    first = index
    end = index + 1
    if index > 0:
        products_before = peaks.find_products(words[index - 1])
        products_of_both = peaks.find_products(f"{words[index - 1]} {words[index]}")
        # `BI V100` is another product than `V100`: the word before belongs to the name. If both
        # words together mean the same products as one of them alone, that word adds nothing.
        if products_of_both not in ((), products, products_before):
            products = products_of_both
            first = index - 1
    if not products:
        return None
    while end < len(words) and _MEMORY_OR_FORM_FACTOR.fullmatch(words[end]):
        end += 1
    return " ".join(words[first:end])


def split_vendor(text: str) -> tuple[str | None, str | None]:
    """Return device and vendor: ``A100`` and ``nvidia`` of ``nvidia A100 (80G * 8)``.

    None for the device: the text names none; for the vendor: it does not begin with a known one.
    Texts such as ``nvidia / A100`` and ``A100 /`` are read without their slashes.
    """
    names = strip_markup(text).partition("(")[0].strip(" /")
    first_word, _, names_behind = names.partition(" ")
    if first_word.casefold() in WORDS["names"]["vendors"]:
        return names_behind.strip(" /") or None, first_word.casefold()
    return names or None, None


def read_changes(text: str) -> dict[str, str]:
    """Return changed hyper-parameters by their printed names; ``bs=96,lr=0.00015``."""
    return {name.strip(): value for name, value in _CHANGE.findall(strip_markup(text))}


def read_flags(text: str) -> dict[str, str]:
    """Return the options of a command line by their names: ``--tf32 0 --fp16``."""
    return {name: value or "true" for name, value in _FLAG.findall(strip_markup(text))}


def find_precision(flags: dict[str, str]) -> str | None:
    """Return the precision that options choose; None: they choose none.

    Args:
        flags: values of the options by name, ``bf16`` for ``--bf16``.
    """
    chosen = flags.get("precision") or flags.get("mixed_precision") or flags.get("dtype")
    if chosen and chosen.casefold() not in _FALSE_WORDS:  # not `--mixed_precision no`
        return chosen
    for name in ("fp8", "bf16", "fp16"):  # `--fp8` is often given beside `--bf16`, and then counts
        if name in flags and flags[name].casefold() not in _FALSE_WORDS:
            return name
    if "tf32" in flags:  # it decides how matmuls of fp32 are computed
        return "fp32" if flags["tf32"].casefold() in _FALSE_WORDS else "tf32"
    return None
