"""Read the names of runs: labels such as ``A100单机8卡（1x8）``, device names, flags, settings."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainmark.devices import peaks
from trainmark.published.importers.vocabulary import WORDS, strip_markup
from trainmark.spec import Message, message

_NUMERALS: dict[str, int] = WORDS["world"]["numerals"]
_MACHINES, _CARDS = WORDS["world"]["machines"], WORDS["world"]["cards"]
# A world is the number of machines and the number of cards of each.
_COUNT = rf"[0-9]{{1,6}}|[{''.join(_NUMERALS)}]"
_WORLD = re.compile(r"\(\s*([0-9]{1,6})\s*[xX*]\s*([0-9]{1,6})\s*(?:\*\s*[0-9]+\s*G[iB]*)?\)")
_BARE = re.compile(r"(?:^|\s)([0-9]{1,2}) ?[xX] ?([0-9]{1,3})\s*$")  # `H100 1x8`; not `4090 x8`
_NUMBERED = re.compile(r"^\[[0-9]+\]\s+")  # rows of our own pages: `[1] A100 1 node x 2 (1x2)`
_WORDS = re.compile(rf"({_COUNT}){_MACHINES}({_COUNT}){_CARDS}")
# Its empty first group stands for the machines of `_WORDS`, whose number is not printed.
_ALL_CARDS = re.compile(rf"(?<![0-9A-Za-z])()([0-9]{{1,5}}){_CARDS}")
_ENGLISH = re.compile(r"\s([0-9]{1,6}) nodes? x ([0-9]{1,6})\s*$")
_FILE = re.compile(r"(?:config_)?(.*?)x([0-9]{1,6})x([0-9]{1,6})(?:\.?py)?")
_PRODUCT = re.compile(r"[A-Za-z]{0,6}[-_]?[A-Z]?[0-9]{2,5}")  # not `TP1PP1SH2SP8A10080G`
_COUNTED = re.compile(r"([0-9]{1,5})\s*[xX*]\s+?(\S.*)|([0-9]{1,5})[xX]([A-Za-z].*)")  # `8x A100`
_MACHINE_NAME = re.compile(r"(?i)\b(?:dgx|hgx|nodes?|machines?|servers?)")
_COUNT_OF_DEVICES = re.compile(
    r"(?i)(?<![\w.])([0-9]{1,5})\s*(?:x\s*)?(?:gpus?|devices?|cards?|accelerators?|npus?)\b"
)
_TIMES = re.compile(r"(?<![\w.])[0-9]{1,5}[xX×](?=[A-Za-z])")  # `8xH100`
_SPECIFIER = re.compile(r"(?i)[0-9]+-?g(?:i?b)?|sxm[0-9]?|pcie|nvl|hbm[0-9]?e?")
_COUNT_OF_PRODUCTS = re.compile(r"(?<![\w.])([0-9]{1,5})\s*[xX×]\s*([A-Za-z][\w-]*)")
_VENDORS = {*WORDS["names"]["vendors"], "tesla", "instinct", "huawei", "google", "aws"}
_CHANGE = re.compile(r"(\w[\w .-]{0,60}?) ?= ?(\"[^\"]*\"|[^\s,;()]+)")
_FLAG = re.compile(r"(?<!\S)--([A-Za-z][\w-]*)(?:[ =](?!-)(\S+))?")
_FALSE = {"0", "false", "no", "off"}
_SEPARATORS = " -/*\\,"  # between a device and its world
_UNKNOWN_WORLD = (0, 0)
_MAX_PER_MACHINE = 8  # cards; a larger number counts the cards of all machines


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


def read_label(label: str, config_file: str = "", columns: str = "") -> Label:
    """Return the device and world that a label names, with a note if it contradicts itself.

    Args:
        config_file: name of the configuration file, which may have the world, too.
        columns: the world of other columns of the row, in the form of a label: ``(1x8)``.
    """
    text = _NUMBERED.sub("", strip_markup(label)).replace("×", "x")
    world_in_label = _WORLD.search(text) or _BARE.search(text)
    printed = world_in_label or _WORLD.fullmatch(columns)
    head = text[: world_in_label.start()].rstrip() if world_in_label else text
    words = _find_counting_words(head, printed)
    file = _FILE.fullmatch(strip_markup(config_file))
    device = _read_device(head, words, printed, file)
    if printed:
        world = int(printed[1]), int(printed[2])
    elif file:
        world = int(file[2]), int(file[3])
    elif words:
        world = _read_counting_words(words)
    else:
        world = _UNKNOWN_WORLD
    if 0 in world:  # unknown, or printed as 0
        return _read_counted_label(text, device)
    notes = []
    if words and not _count_same_world(words, world):
        world_text = f"{world[0]}x{world[1]}"
        notes = [message("label_contradicts_itself", words=words[0].strip(), world=world_text)]
    return Label(device or None, *world, notes)


def _read_device(
    head: str,
    words: re.Match[str] | None,
    printed: re.Match[str] | None,
    file: re.Match[str] | None,
) -> str:
    """Return the device before the words or the world, else that of the file; empty: none."""
    device = ""
    if words:
        device = head[: words.start()].strip(_SEPARATORS)
    elif printed:
        device = head.strip(_SEPARATORS)
    if not device and file and _PRODUCT.fullmatch(file[1]):
        device = file[1]
    return device


def _find_counting_words(head: str, printed: re.Match[str] | None) -> re.Match[str] | None:
    """Return the words that count machines and cards: ``四机32卡``, ``16卡``, ``2 nodes x 8``."""
    if printed:
        # `H1004机32卡（4x8）`: the name of the device ends before the number of machines.
        exact = re.search(rf"({printed[1]}){_MACHINES}({_COUNT}){_CARDS}", head)
        if exact:
            return exact
    return _WORDS.search(head) or _ENGLISH.search(head) or _ALL_CARDS.search(head)


def _count_nodes_and_cards(words: re.Match[str]) -> tuple[int, int]:
    """Return the machines and cards that words count."""
    cards = _NUMERALS.get(words[2]) or int(words[2])
    nodes = _NUMERALS.get(words[1]) or int(words[1] or split_devices(cards)[0])
    return nodes, cards


def _read_counting_words(words: re.Match[str]) -> tuple[int, int]:
    """Return the machines that words count, and the cards of each.

    More than 8 cards are those of all machines: ``四机32卡``.
    """
    nodes, cards = _count_nodes_and_cards(words)
    is_total = cards > _MAX_PER_MACHINE and nodes > 0 and cards % nodes == 0
    return nodes, cards // nodes if is_total else cards


def _count_same_world(words: re.Match[str], world: tuple[int, int]) -> bool:
    """Tell whether words count the machines and cards of a world, per machine or in total."""
    if _read_counting_words(words) == world:
        return True
    nodes, cards = _count_nodes_and_cards(words)
    are_nodes_equal = nodes == world[0] or not words[1]
    return cards == world[0] * world[1] and are_nodes_equal


def _read_counted_label(text: str, device: str) -> Label:
    """Return the product and number of ``8x A100`` if the product is known; else the device."""
    name, count = split_count(text)
    if not count or not peaks.find_products(name):
        return Label(device or None, None, None, [])
    if is_machine(name):
        return Label(name, count, None, [])
    return Label(name, *split_devices(count), [])


def is_machine(name: str) -> bool:
    """Tell whether a name is that of a machine with several devices: ``DGX A100``, ``A3 (h100-8)``.

    It is if it has other words than those of a product, its vendor, memory and form factor.
    """
    if _MACHINE_NAME.search(name):
        return True
    products = peaks.find_products(name)
    known = {word for row in products for word in row["product"].lower().split()}
    words = re.findall(r"[a-z0-9]+", name.lower())
    return bool(products) and any(
        word not in known and word not in _VENDORS and not _SPECIFIER.fullmatch(word)
        for word in words
    )


def split_count(text: str) -> tuple[str, int]:
    """Return ``A100`` and 8 of ``8 x A100``; if there is no count, the text and 0."""
    match = _COUNTED.fullmatch(strip_markup(text).replace("×", "x"))
    if match is None:
        return text, 0
    name, count = match[2] or match[4], match[1] or match[3]
    return name.partition(",")[0].strip(), int(count)


def split_devices(count: int) -> tuple[int, int]:
    """Return the machines and the devices of each; up to 8 devices are in one machine."""
    machines = max(1, count // _MAX_PER_MACHINE)
    return (machines, count // machines) if count % machines == 0 else (1, count)


def count_devices(text: str) -> int | None:
    """Return the number of devices in a heading: ``LoRA on 4 GPUs``; None: it has no number."""
    match = _COUNT_OF_DEVICES.search(text) or _COUNT_OF_PRODUCTS.search(text)
    if match is None or (match.re is _COUNT_OF_PRODUCTS and not peaks.find_products(match[2])):
        return None
    return int(match[1])


def find_device(text: str) -> str | None:
    """Return the part of a heading that names a known product; None: it names none.

    It is the product, with the word before it if that narrows it down, and the memory and form
    factor after it: ``V100 32G`` of ``DGX-1 (8x V100 32G)``.
    """
    parts = re.findall(r"[^\s,;()（）/]+", _TIMES.sub("", strip_markup(text)))
    names = [_read_product(parts, place) for place in range(len(parts))]
    candidates = [name for name in names if name is not None]
    # Of equally exact names the last, which is in brackets: `DGX A100 (8x A100 80GB)`.
    return min(reversed(candidates), key=lambda name: len(peaks.find_products(name)), default=None)


def _read_product(parts: list[str], place: int) -> str | None:
    """Return the product that the word at ``place`` names, with the words that narrow it down."""
    products = peaks.find_products(parts[place])
    first = place
    last = place + 1
    if place:
        before = peaks.find_products(parts[place - 1])
        both = peaks.find_products(f"{parts[place - 1]} {parts[place]}")
        if both not in ((), products, before):  # `BI V100` is no V100
            products = both
            first = place - 1
    if not products:
        return None
    while last < len(parts) and _SPECIFIER.fullmatch(parts[last]):
        last += 1
    return " ".join(parts[first:last])


def split_vendor(short_name: str) -> tuple[str | None, str | None]:
    """Return ``A100`` and ``nvidia`` of ``nvidia A100 (80G * 8)``."""
    text = strip_markup(short_name).partition("(")[0].strip(" /")
    first, _, rest = text.partition(" ")
    known = first.casefold() in WORDS["names"]["vendors"]
    device = rest.strip(" /") if known else text
    return device or None, first.casefold() if known else None


def read_changes(text: str) -> dict[str, str]:
    """Return changed hyper-parameters by their printed names; ``bs=96,lr=0.00015``."""
    return {name.strip(): value for name, value in _CHANGE.findall(strip_markup(text))}


def read_flags(text: str) -> dict[str, str]:
    """Return the options of a command line by their names: ``--tf32 0 --fp16``."""
    return {name: value or "true" for name, value in _FLAG.findall(strip_markup(text))}


def find_precision(flags: dict[str, str]) -> str | None:
    """Return the precision that options choose; None: they choose none."""
    chosen = flags.get("precision") or flags.get("mixed_precision") or flags.get("dtype")
    if chosen:
        return chosen
    for name in ("fp8", "bf16", "fp16"):
        if flags.get(name, "0").casefold() not in _FALSE:
            return name
    if "tf32" in flags:
        return "fp32" if flags["tf32"].casefold() in _FALSE else "tf32"
    return None
