"""Beyond the paper: engines that hold more than their capacity, and long queries first."""

from tests.scheduler.support.scene import Scene, of

from gyre.scheduler.messages import CallsReported, EnterTraining, LaunchExecution
from gyre.scheduler.policies import Boundary, LongestFirst


def test_engines_hold_more_while_every_cell_is_home():
    scene = Scene(overcommit=1.5, dispatch=Boundary(extra_dispatch=10))

    assert 18 == len(of(LaunchExecution, scene.admit()))
    assert 12 == scene.scheduler.engines.capacity
    assert [6, 6, 6] == [scene.scheduler.engines.load(engine) for engine in range(3)]


def test_a_cell_enters_by_its_plain_capacity_and_nobody_is_stranded():
    scene = Scene(overcommit=1.5, dispatch=Boundary(extra_dispatch=3.5), supply_dwell_s=0.0)
    scene.admit()
    commands = scene.ready(0, 1, 2, 3)
    assert 10 == scene.scheduler.waterlevel
    assert [] == of(EnterTraining, commands)
    commands = scene.ready(4)
    engines = scene.scheduler.engines

    assert [0] == [one.cell for one in of(EnterTraining, commands)]
    assert 8 == scene.scheduler.waterlevel
    assert engines.occupied <= engines.capacity == engines.limit
    assert 0 == engines.num_stranded


def test_an_engine_as_busy_as_it_should_be_takes_no_more():
    scene = Scene(overcommit=1.5, dispatch=Boundary(extra_dispatch=10))
    scene.tell(CallsReported(engine=0, calls=4))
    scene.admit()

    assert [4, 6, 6] == [scene.scheduler.engines.load(engine) for engine in range(3)]
    assert 2 == len(of(LaunchExecution, scene.tell(CallsReported(engine=0, calls=3))))


def test_the_longest_query_launches_first_and_an_unknown_one_before_it():
    scene = Scene(num_cells=1, cell_capacity=8, steps_per_burst=2, launch_order=LongestFirst())
    launched = of(LaunchExecution, scene.admit(estimates=[1.0, 9.0, None, 4.0]))

    assert [2, 2, 1, 1, 3, 3, 0, 0] == [one.group for one in launched]


def test_an_older_version_goes_before_a_longer_query():
    order = LongestFirst()
    old = order.rank(version=0, group=0, estimate_s=1.0)

    assert old < order.rank(version=1, group=1, estimate_s=100.0)
    assert old < order.rank(version=1, group=1, estimate_s=None)
