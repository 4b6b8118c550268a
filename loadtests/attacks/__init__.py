"""How much an attacking client disturbs a normal one."""
