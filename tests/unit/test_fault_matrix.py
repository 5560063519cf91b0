"""Every fault that a test makes is in the fault matrix, with its outcome."""

from tests.kit.fault_matrix import TESTS, Fault, faults, page, problems


def test_every_fault_has_one_outcome() -> None:
    found = list(faults())
    assert len({fault.text for fault in found}) >= 300
    assert problems(found) == []


def test_every_file_of_fault_tests_names_its_faults() -> None:
    named = {fault.file for fault in faults()}
    files = {f"fault/{path.name}" for path in (TESTS / "fault").glob("test_*.py")}
    assert sorted(files - named) == []


def test_an_outcome_that_is_missing_or_given_twice_is_found() -> None:
    first = Fault("a kill", "nothing is lost", "1", "fault/test_a.py", "test_a")
    assert problems([first, first._replace(outcome=None, test="test_b")]) == []
    assert problems([first, first]) == ["2 outcomes: a kill"]
    assert problems([first._replace(outcome=None)]) == ["0 outcomes: a kill"]


def test_the_page_has_a_row_for_each_fault_with_all_its_tests() -> None:
    first = Fault("a | kill", "nothing is lost", "1 / 9", "fault/test_a.py", "test_a")
    second = Fault("a | kill", None, "", "unit/test_b.py", "test_b")
    row = "| a \\| kill | nothing is lost | 1 / 9 | `test_a`, `unit/test_b.py::test_b` |"
    assert page([first, second]).splitlines()[2:] == [
        "## fault/test_a.py",
        "",
        "| fault | outcome | cases | test |",
        "|---|---|---|---|",
        row,
    ]
