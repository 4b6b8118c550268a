"""The retrieval core: synchronous, without web or asyncio code. Training and export use it, too."""
