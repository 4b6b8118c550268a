"""The lab: measures the product and compares it with other systems. No other package imports it."""
