"""qwen-code, with its memory extractor and statistics off."""

from staging.program import Launch, Place, plain_environment, write_json


def launch(place: Place, task: str) -> Launch:
    settings = {
        "memory": {"enabled": False, "enableManagedAutoMemory": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False},
        "model": {"generationConfig": {"contextWindowSize": 131_072}},
        "context": {"autoCompactThreshold": place.options.get("compact_fraction", 0.85)},
    }
    write_json(place.home / ".qwen" / "settings.json", settings)
    flags = ["--yolo", "--auth-type", "openai", "--output-format", "json"]
    return Launch(
        arguments=[*flags, task],
        environment=plain_environment(place)
        | {
            "OPENAI_BASE_URL": f"{place.url}/v1",
            "OPENAI_API_KEY": place.key,
            "OPENAI_MODEL": "policy",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        },
    )
