"""Small asyncio tools: background tasks, condition variable, race, overlapping-wait timer."""
