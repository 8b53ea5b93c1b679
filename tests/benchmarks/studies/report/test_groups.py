from benchmarks.studies.methods import METHODS
from benchmarks.studies.report.groups import CHOICE, IN_ALL, KINDS, chosen, panels_of


def test_few_methods_share_one_panel():
    assert panels_of(["a", "b"]) == {"all methods": ["a", "b"]}


def test_some_are_chosen_of_many():
    assert chosen(["b", "a"]) == ["b", "a"]
    assert set(chosen(list(METHODS))) == set(CHOICE)


def test_many_methods_are_sorted_by_kind():
    panels = panels_of(list(METHODS))
    assert {name for names in panels.values() for name in names} == set(METHODS)
    for names in panels.values():
        assert set(IN_ALL) <= set(names)
        assert len(names) == len(set(names)) <= 10


def test_unknown_methods_have_a_panel_too():
    assert panels_of([*METHODS, "mine"])["others"][-1] == "mine"


def test_every_method_is_of_one_kind():
    kinds = [name for kind in KINDS.values() for name in kind]
    assert len(kinds) == len(set(kinds))
    assert set(METHODS) <= {*kinds, *IN_ALL}
