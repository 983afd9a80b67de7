"""Tables, curves, reports and comparisons made from run results."""
