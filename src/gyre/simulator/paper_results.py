"""The fitting file: results as published, read where something is compared with them."""

from dataclasses import dataclass

ABLATION_H: dict[str, float] = {
    "A0": 25.08,
    "A1": 27.01,
    "A2": 32.58,
    "A3": 22.18,
    "C0": 23.23,
    "C1": 22.56,
    "C2": 19.23,
    "C3": 20.69,
    "E0": 16.12,
    "E1": 17.87,
    "E2": 16.47,
}
"""Hours of twelve steps (tab:ablation-scheduling)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUps:
    """Of Gyre over each baseline, as a range or twice the same number."""

    over_async: tuple[float, float]
    over_colocate: tuple[float, float]


NL2REPO_48_STEPS = SpeedUps(over_async=(1.42, 1.53), over_colocate=(1.36, 1.47))
"""At both targets of mean staleness (sec:end-to-end)."""

NL2REPO_MAX_48_STEPS_H: dict[str, float] = {"gyre": 75.42, "async": 134.55, "colocate": 91.47}
"""Hours of the 2.4T model (fig:nl2repo-max)."""

DEEPSWE_24_STEPS: dict[float, SpeedUps] = {
    1.0: SpeedUps(over_async=(1.569, 1.569), over_colocate=(1.610, 1.610)),
    1.5: SpeedUps(over_async=(1.572, 1.572), over_colocate=(1.824, 1.824)),
}
"""By target of mean staleness (tab:swe-tb)."""

TERMINALBENCH_24_STEPS: dict[float, SpeedUps] = {
    1.0: SpeedUps(over_async=(1.383, 1.383), over_colocate=(1.809, 1.809)),
    1.5: SpeedUps(over_async=(1.430, 1.430), over_colocate=(1.849, 1.849)),
}
"""By target of mean staleness (tab:swe-tb)."""
