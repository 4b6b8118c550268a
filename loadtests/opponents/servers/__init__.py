"""The opponents' servers. They run in a separate environment and import no Keymatch code.

Each module has two tasks, which `task.py` parses:

    python -m loadtests.opponents.servers.NAME build --keys FILE --store FOLDER ...
    python -m loadtests.opponents.servers.NAME serve --store FOLDER --port PORT

`build` reads the keys, fp16 unit vectors [N, d] in a .npy file, and writes the store that `serve`
opens. A key's id is its row number as text. `serve` answers GET /health/ready with 200 as soon as
it can answer queries, and ends with status 0 after SIGTERM.
"""
