"""Linear layer, elementwise operators and row reduction as one fused operation."""
