"""A checkpoint becomes an exported encoder: ONNX graph, quantization, parity with torch."""
