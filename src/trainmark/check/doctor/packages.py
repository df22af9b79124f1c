"""The installed packages, against the bounds that they set each other.

Reads metadata only; ``devices.torch`` imports torch, in a process of its own.
"""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution

from trainmark.check.doctor.subject import Conditions, Subject, judged

_OURS = "trainmark"
_EXTRAS = ("", "nvidia", "prepare")  # of ours; the bounds of what is installed count
# Packages that ours load when they are there: a wrong one keeps ours from being imported.
_LOADED_TOO = ("torchvision", "torchaudio")
# Each brings a module pynvml of its own, in place of nvidia-ml-py's; pynvml before 12 only:
# https://github.com/XuehaiPan/nvitop/issues/44, 2026-11-22
_OTHER_PYNVML = {"pynvml": (12, 0), "nvidia-ml-py3": (1_000, 0)}


def installed(name: str) -> Distribution | None:
    """Return the installed package called ``name``."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def packages(_: Subject) -> Conditions:
    """Compare every package that we need with the bounds of those that need it."""
    from packaging.requirements import Requirement

    waiting, seen, faults = [_OURS, *_LOADED_TOO], set[str](), []
    while waiting:
        name = waiting.pop()
        package = installed(name)
        if name in seen or package is None:
            continue
        seen.add(name)
        extras = _EXTRAS if name == _OURS else ("",)
        for need in map(Requirement, package.requires or ()):
            marker, here = need.marker, installed(need.name)
            of = [one for one in extras if marker is None or marker.evaluate({"extra": one})]
            if here is None and "" in of and name not in _LOADED_TOO:
                what = f"{name} needs {need}, which is missing"
                faults.append(judged(what, f"`pip install '{need}'`", stops=True))
            elif here is not None and of:
                waiting.append(need.name)
                if not need.specifier.contains(here.version, prereleases=True):
                    what = f"{name} {package.version} needs {need}, and {here.version} is here"
                    remedy = f"install {need.name}{need.specifier}"
                    faults.append(judged(what, remedy, spoils=True))
    yield from faults
    if not faults:
        what = f"{len(seen)} packages keep each other's bounds"
        yield judged(what, "install the program: `make install`", unknown=_OURS not in seen)


def package_pairs(_: Subject) -> Conditions:
    """Find packages that cannot work together, which their metadata does not say."""
    from packaging.version import Version

    def release(name: str) -> tuple[int, ...] | None:
        here = installed(name)
        return Version(here.version).release[:2] if here else None

    broken = []
    for name, sound in _OTHER_PYNVML.items():
        if (other := release(name)) and other < sound and installed("nvidia-ml-py"):
            remedy = f"`pip uninstall {name}`, then `pip install --force-reinstall nvidia-ml-py`"
            broken.append((f"{name} replaces the module of nvidia-ml-py", remedy))
    yield from (judged(what, remedy, spoils=True) for what, remedy in broken)
    if not broken:
        yield judged("none that is known not to work")
