"""From a checkpoint to an exported encoder: ONNX graph, quantization, parity with torch."""
