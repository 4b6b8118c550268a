"""The systems that can be trained: one file each, to be read next to its paper.

| file                       | content                                              |
|----------------------------|------------------------------------------------------|
| `system.py`                | the base of all systems, and what they are built from|
| `registry.py`              | the table of systems by the name that a recipe gives |
| `losses.py`                | all losses as pure functions                         |
| `two_headed.py`            | what systems with UniDEC's two heads share           |
| `rae.py`, `ngame.py`, ...  | one system each                                      |

A new system is a new file and a line in the registry. Its file has `Settings`, a frozen dataclass
with the keys of its `[system]` table, and `build(settings, task) -> System`.
"""
