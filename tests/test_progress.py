import io

from rich.console import Console

from batchnuts.mcmc.draws import Progress
from batchnuts.progress import ProgressView, short

STEPS = [
    Progress("compile", 0, 0, 0.1),
    Progress("warmup", 0, 76_800, 0.1),
    Progress("warmup", 76_800, 76_800, 10.0, 5_000_000, 0.91, 12),
    Progress("sampling", 25_600, 51_200, 4.0, 1_000_000, 0.93, 3),
    Progress("sampling", 51_200, 51_200, 8.0, 2_000_000, 0.93, 3),
]


def shown(**options):
    console = Console(file=io.StringIO(), **options)
    with ProgressView(console) as view:
        for step in STEPS:
            view(step)
    return console.file.getvalue()


def test_elsewhere_than_on_a_terminal_there_are_a_few_plain_lines():
    lines = shown(force_terminal=False, width=40).splitlines()
    assert lines[0] == "compile  0 s"
    assert lines[-1] == "sampling 100%  6.4k draws/s  250k gradients/s  utilization 0.93  3 divergences  8 s"
    assert len(lines) == 5
    assert not any("\x1b" in line for line in lines)


def test_bar_on_a_terminal_is_whole_at_any_usual_width():
    wide = shown(force_terminal=True, width=140, color_system=None)
    assert "250k gradients/s  utilization 0.93  3 divergences" in wide
    narrow = shown(force_terminal=True, width=80, color_system=None)
    assert "sampling 100% 6.4k draws/s 250k grad/s util 0.93 3 div" in narrow
    assert "warmup   100% 7.68k transitions/s 500k grad/s util 0.91 12 div" in narrow


def test_short_numbers():
    assert [short(n) for n in (0, 9.5, 950, 1234, 45_600_000)] == ["0", "9.5", "950", "1.23k", "45.6M"]
