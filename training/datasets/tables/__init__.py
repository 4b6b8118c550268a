"""Table files of (query, keyword) rows: csv, tsv, jsonl and parquet."""
