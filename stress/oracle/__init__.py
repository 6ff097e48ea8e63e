"""What the right answer is, by dense float64 algebra that shares no code with gigagp."""
