"""A student of few layers that gives the teacher's vectors: the encoder of queries at serving.

Keys, labels and posted texts stay the teacher's; queries are encoded by the student (an asymmetric
pair of towers: LEAF, arXiv 2509.12539; KALE, arXiv 2304.01016). The training loop is that of
`training.loop`; this folder gives it the student, the batches of texts and the loss.
"""
