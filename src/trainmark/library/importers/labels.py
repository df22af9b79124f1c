"""Read what names a run: labels such as ``A100单机8卡（1x8）``, device names, flags, settings."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainmark.devices import peaks
from trainmark.library.importers.vocabulary import WORDS, plain
from trainmark.spec import Message, message

_NUMERALS: dict[str, int] = WORDS["world"]["numerals"]
_MACHINES, _CARDS = WORDS["world"]["machines"], WORDS["world"]["cards"]
_COUNT = rf"[0-9]{{1,6}}|[{''.join(_NUMERALS)}]"
_WORLD = re.compile(r"\(\s*([0-9]{1,6})\s*[xX*]\s*([0-9]{1,6})\s*(?:\*\s*[0-9]+\s*G[iB]*)?\)")
_BARE = re.compile(r"(?:^|\s)([0-9]{1,2}) ?[xX] ?([0-9]{1,3})\s*$")  # `H100 1x8`; not `4090 x8`
_NUMBERED = re.compile(r"^\[[0-9]+\]\s+")  # rows of our own pages: `[1] A100 1 node x 2 (1x2)`
_WORDS = re.compile(rf"({_COUNT}){_MACHINES}({_COUNT}){_CARDS}")
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
_AROUND = " -/*\\,"  # what stands between a device and its world
_PER_MACHINE = 8  # cards; more than that are those of all machines


class Label(NamedTuple):
    """What a label says; None if it does not."""

    device: str | None
    nnodes: int | None
    nproc: int | None
    notes: list[Message]


def read_label(label: str, config_file: str = "", columns: str = "") -> Label:
    """Return what a label and the name of its configuration file say, contradictions noted.

    ``columns`` is the world that other columns of the row print, as a label prints it: ``(1x8)``.

    Words such as ``四机32卡`` count the cards of one machine up to 8, else those of all.
    """
    text = _NUMBERED.sub("", plain(label)).replace("×", "x")
    in_label = _WORLD.search(text) or _BARE.search(text)
    printed = in_label or _WORLD.fullmatch(columns)
    head = text[: in_label.start()].rstrip() if in_label else text
    words = _counting_words(head, printed)
    file = _FILE.fullmatch(plain(config_file))
    nodes, cards, counted = _counted(words)
    if printed:
        world = int(printed[1]), int(printed[2])
    elif file:
        world = int(file[2]), int(file[3])
    else:
        world = counted
    device = ""
    if words:
        device = head[: words.start()].strip(_AROUND)
    elif printed:
        device = head.strip(_AROUND)
    if not device and file and _PRODUCT.fullmatch(file[1]):
        device = file[1]
    if 0 in world:
        return _counted_label(text, device)
    notes = []
    are_all = cards == world[0] * world[1] and (nodes == world[0] or not (words and words[1]))
    if words and counted != world and not are_all:
        shown = f"{world[0]}x{world[1]}"
        notes = [message("label_contradicts_itself", words=words[0].strip(), world=shown)]
    return Label(device or None, *world, notes)


def _counting_words(head: str, printed: re.Match[str] | None) -> re.Match[str] | None:
    """Return the words that count machines and cards: ``四机32卡``, ``16卡``, ``2 nodes x 8``."""
    if printed:
        # `H1004机32卡（4x8）`: the device's name ends where the number of machines begins.
        exact = re.search(rf"({printed[1]}){_MACHINES}({_COUNT}){_CARDS}", head)
        if exact:
            return exact
    return _WORDS.search(head) or _ENGLISH.search(head) or _ALL_CARDS.search(head)


def _counted(words: re.Match[str] | None) -> tuple[int, int, tuple[int, int]]:
    """Return machines and cards as words count them, and machines with the cards of one."""
    if words is None:
        return 0, 0, (0, 0)
    cards = _NUMERALS.get(words[2]) or int(words[2])
    nodes = _NUMERALS.get(words[1]) or int(words[1] or split_devices(cards)[0])
    are_of_all = cards > _PER_MACHINE and nodes > 0 and cards % nodes == 0
    return nodes, cards, (nodes, cards // nodes if are_of_all else cards)


def _counted_label(text: str, device: str) -> Label:
    """Return what ``8x A100`` says, of products that are known; else the device alone."""
    name, count = counted_device(text)
    if not count or not peaks.products(name):
        return Label(device or None, None, None, [])
    if is_machine(name):
        return Label(name, count, None, [])
    return Label(name, *split_devices(count), [])


def is_machine(name: str) -> bool:
    """Tell whether a name is that of a machine with several devices: ``DGX A100``, ``A3 (h100-8)``.

    Words besides those of a product, its vendor, memory and form factor say so.
    """
    if _MACHINE_NAME.search(name):
        return True
    products = peaks.products(name)
    known = {word for row in products for word in row["product"].lower().split()}
    words = re.findall(r"[a-z0-9]+", name.lower())
    return bool(products) and any(
        word not in known and word not in _VENDORS and not _SPECIFIER.fullmatch(word)
        for word in words
    )


def counted_device(text: str) -> tuple[str, int]:
    """Return ``A100`` and 8 of ``8 x A100``; the text and 0 without a count."""
    match = _COUNTED.fullmatch(plain(text).replace("×", "x"))
    if match is None:
        return text, 0
    name, count = match[2] or match[4], match[1] or match[3]
    return name.partition(",")[0].strip(), int(count)


def split_devices(count: int) -> tuple[int, int]:
    """Return machines and devices of one; up to 8 devices are those of one machine."""
    machines = max(1, count // _PER_MACHINE)
    return (machines, count // machines) if count % machines == 0 else (1, count)


def count_of_devices(text: str) -> int | None:
    """Return the devices that a heading counts: ``LoRA on 4 GPUs``; None: it counts none."""
    match = _COUNT_OF_DEVICES.search(text) or _COUNT_OF_PRODUCTS.search(text)
    if match is None or (match.re is _COUNT_OF_PRODUCTS and not peaks.products(match[2])):
        return None
    return int(match[1])


def device_in(text: str) -> str | None:
    """Return the part of a heading that names a known product; None: it names none.

    ``V100 32G`` of ``DGX-1 (8x V100 32G)``: the product, with the word before it where that says
    more, and memory and form factor behind it.
    """
    parts = re.findall(r"[^\s,;()（）/]+", _TIMES.sub("", plain(text)))
    named = [match for place in range(len(parts)) if (match := _device_at(parts, place))]
    # Of equally exact ones the last, which stands in brackets: `DGX A100 (8x A100 80GB)`.
    return min(reversed(named), key=lambda name: len(peaks.products(name)), default=None)


def _device_at(parts: list[str], place: int) -> str | None:
    """Return the product that a word of a text names, with the words that narrow it down."""
    products, first, last = peaks.products(parts[place]), place, place + 1
    if place:
        before = peaks.products(parts[place - 1])
        both = peaks.products(f"{parts[place - 1]} {parts[place]}")
        if both not in ((), products, before):  # `BI V100` is no V100
            products, first = both, place - 1
    if not products:
        return None
    while last < len(parts) and _SPECIFIER.fullmatch(parts[last]):
        last += 1
    return " ".join(parts[first:last])


def device_and_vendor(short_name: str) -> tuple[str | None, str | None]:
    """Return ``A100`` and ``nvidia`` of ``nvidia A100 (80G * 8)``."""
    text = plain(short_name).partition("(")[0].strip(" /")
    first, _, rest = text.partition(" ")
    known = first.casefold() in WORDS["names"]["vendors"]
    device = rest.strip(" /") if known else text
    return device or None, first.casefold() if known else None


def read_changes(text: str) -> dict[str, str]:
    """Return changed hyper-parameters by their printed names; ``bs=96,lr=0.00015``."""
    return {name.strip(): value for name, value in _CHANGE.findall(plain(text))}


def read_flags(text: str) -> dict[str, str]:
    """Return the options of a command line by their names: ``--tf32 0 --fp16``."""
    return {name: value or "true" for name, value in _FLAG.findall(plain(text))}


def precision_of_flags(flags: dict[str, str]) -> str | None:
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
