"""The card's section `contract` counts what pytest reports and names what did not pass."""

from __future__ import annotations

from benchmarks.card.contract import Case, findings, read

REPORT = """<testsuites><testsuite>
<testcase classname="tests.device.test_time" name="test_a"/>
<testcase classname="tests.device.test_time" name="test_b[x]">
  <failure message="assert 1 == 2&#10;more">trace</failure></testcase>
<testcase classname="tests.device.test_memory" name="test_c"><error message="boom"/></testcase>
<testcase classname="tests.device.test_memory" name="test_d">
  <skipped type="pytest.skip" message="one | device"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_its_reasons_kept(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    found = read(path)
    assert found == [
        Case("test_time::test_a", "passed", ""),
        Case("test_time::test_b[x]", "failed", "assert 1 == 2"),
        Case("test_memory::test_c", "failed", "boom"),
        Case("test_memory::test_d", "skipped", "one | device"),
    ]
    result = findings(found, exit_code=1)
    assert result.figures == {"tests_passed": 1.0, "tests_failed": 2.0, "tests_skipped": 1.0}
    assert [bar.met for bar in result.bars] == [False]
    assert result.text.splitlines()[-1] == "| test_memory::test_d | skipped | one \\| device |"
    assert len(result.text.splitlines()) == 5


def test_a_contract_holds_only_if_tests_passed_and_none_failed(tmp_path):
    passed = [Case("a", "passed", ""), Case("b", "skipped", "none")]
    assert findings(passed, exit_code=0).bars[0].met
    assert not findings(passed, exit_code=3).bars[0].met
    assert not findings(passed[1:], exit_code=0).bars[0].met
    assert read(tmp_path / "missing.xml") == []
    assert not findings([], exit_code=0).bars[0].met
