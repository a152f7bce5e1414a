"""mini-swe-agent, with its price table and first-run questions off."""

from staging.program import Launch, Place, plain_environment


def launch(place: Place, task: str) -> Launch:
    trajectory = place.home / "trajectory.json"
    flags = ["-m", "openai/policy", "-y", "--exit-immediately", "-l", "0", "-o", str(trajectory)]
    return Launch(
        arguments=[*flags, "-t", task],
        environment=plain_environment(place)
        | {
            "OPENAI_API_BASE": f"{place.url}/v1",
            "OPENAI_API_KEY": place.key,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": str(place.home / "mini"),
        },
    )
