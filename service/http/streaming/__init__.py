"""`POST /labels` as a stream: lines in, batches to the writer, answers out."""
