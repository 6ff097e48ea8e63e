"""The oracle: right answers by dense float64 algebra that shares no code with gigagp."""
