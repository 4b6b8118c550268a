"""The retrieval core: synchronous, without web or asyncio; training and export use it too."""
