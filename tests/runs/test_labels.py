"""Labels of runs: short, and no two are the same."""

from toolkit.telemetry.runs.labels import RunName, labels_of


def texts(*runs):
    return [
        label.text
        for label in labels_of([RunName(*run, dict) if len(run) == 3 else RunName(*run) for run in runs])
    ]


def test_every_label_is_unique_whatever_folders_and_ids_are_called():
    assert texts(("a", "/x/one/a", ""), ("a", "/x/two/a", "")) == ["one/a", "two/a"]
    assert texts(("a", "/x/m.db", "12345678abc"), ("a", "/x/m.db", "22345678abc")) == [
        "a (m.db 12345678)",
        "a (m.db 22345678)",
    ]
    odd = texts(
        ("a", "/x/b", ""), ("a", "/x/a-2", ""), ("a-2", "/x/c", ""), ("a", "/x/m", "1"), ("a", "/x/m", "1")
    )
    assert len(set(odd[:3])) == 3


def test_a_secret_among_the_settings_is_masked():
    found = texts(*(("a", f"/x/{n}", "", lambda n=n: {"api_key": f"k-{n}"}) for n in "bc"))
    assert not any("k-" in text for text in found)
