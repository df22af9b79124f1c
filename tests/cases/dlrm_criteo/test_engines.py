"""torchrec as a second engine: absent it is refused while planning, present it trains alike."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed as dist

import tiny_dlrm
from tiny_dlrm import CARDINALITIES, DIM, RATE, SEED, Spread
from trainmark.cases.dlrm_criteo import recipe as engines
from trainmark.cases.dlrm_criteo.case import CASE
from trainmark.cases.dlrm_criteo.embeddings import FusedTables
from trainmark.cases.dlrm_criteo.hybrid import HybridTables
from trainmark.cases.dlrm_criteo.recipe import require_engine
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.record import environment

if TYPE_CHECKING:
    from collections.abc import Callable

needs_torchrec = pytest.mark.skipif(
    bool(engines.missing_packages()),
    reason=f"torchrec is not installed: {engines.INSTALL_COMMAND}",
)


def torchrec_tables() -> Callable[..., Any]:
    from trainmark.cases.dlrm_criteo.engine_torchrec import TorchrecTables

    return TorchrecTables


def test_an_absent_engine_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "torchrec" else name)
    require_engine("plain", 6)
    with pytest.raises(EnvironmentFault) as caught:
        require_engine("torchrec", 8)
    assert str(caught.value) == (
        "engine=torchrec needs torchrec; not installed beside this program"
        "\n  way out: make install-recsys, or engine=plain"
    )
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    require_engine("torchrec", 8)


def test_the_record_names_the_engines_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torchrec": "1.8.0", "fbgemm_gpu-cpu": "1.8.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(environment, "version", version)
    assert environment.package_versions() == installed


@needs_torchrec
def test_torchrec_trains_as_the_plain_engine() -> None:
    plain = tiny_dlrm.train(Spread(loss_scale=8.0))
    other = tiny_dlrm.train(Spread(loss_scale=8.0, engine="torchrec"))
    assert len(other["losses"]) == 10
    assert other["losses"] == pytest.approx(plain["losses"], abs=1e-4)
    for key, rows in plain["pieces"].items():
        torch.testing.assert_close(other["pieces"][key], rows, rtol=0, atol=1e-5)
    for value, wanted in zip(other["dense"], plain["dense"], strict=True):
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-5)


@needs_torchrec
def test_torchrec_holds_and_finds_the_same_rows() -> None:
    ours, theirs = (
        lookup(CARDINALITIES, DIM, seed=SEED) for lookup in (FusedTables, torchrec_tables())
    )
    assert torch.equal(theirs.weight, ours.weight)
    for _, _, ids in tiny_dlrm.data(CARDINALITIES)[-2:]:
        assert torch.equal(theirs(ids), ours(ids))


@needs_torchrec
def test_a_gradient_that_overflowed_is_dropped() -> None:
    tables = torchrec_tables()(CARDINALITIES, DIM, seed=SEED)
    before = tables.weight.clone()
    tables.learning_rate, tables.grad_scale = RATE, torch.tensor(4.0)
    ids = tiny_dlrm.data(CARDINALITIES)[0][2]
    (tables(ids).sum() * float("inf")).backward()
    assert torch.equal(tables.weight, before)
    (tables(ids[:, :1]).sum() * 4.0).backward()
    row = tables.weight[ids[0, 0]]
    torch.testing.assert_close(row, before[ids[0, 0]] - RATE)


@needs_torchrec
def test_torchrec_looks_up_for_spread_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        def wait(self) -> None:
            pass

    def echo(received: torch.Tensor, sent: torch.Tensor, *_: Any, **__: Any) -> Done:
        received.copy_(sent)
        return Done()

    monkeypatch.setattr(dist, "all_to_all_single", echo)
    found = []
    ids = tiny_dlrm.data(CARDINALITIES)[0][2]
    for lookup in (FusedTables, torchrec_tables()):
        tables = HybridTables(Spread().placement, rank=0, seed=SEED, lookup=lookup)
        tables.learning_rate = RATE
        tables(ids).square().sum().backward()
        found.append(tables.local.weight)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-6)


def test_a_width_that_its_kernels_do_not_take_is_refused_while_planning() -> None:
    recipe = replace(CASE.recipes["tiny"], engine="torchrec", embedding_dim=6, bottom_layers="6")
    with pytest.raises(UsageError, match="embedding_dim=6 does not go with engine=torchrec"):
        recipe.check(1)
    replace(recipe, engine="plain").check(1)


@needs_torchrec
def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="asked to look up on meta"), torch.device("meta"):
        torchrec_tables()([3], 8, seed=1)
