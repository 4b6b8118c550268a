"""Frozen HNSW segments behind one protocol, and exact search.

| module                        | content                                                    |
|-------------------------------|------------------------------------------------------------|
| `protocol`                    | what a segment offers, and the filter on its rows           |
| `libraries`                   | the table of index libraries, and the parameters of a graph |
| `faiss_hnsw`, `hnswlib_hnsw`  | one adapter for each index library                          |
| `exact`                       | exact search over live rows and over all keys               |
"""
