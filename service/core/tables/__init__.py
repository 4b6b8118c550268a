"""Table files: csv, tsv, jsonl and parquet, and text files of one column."""
