"""What fedshift costs beside what it must cost: each module measures one thing, side by side with its yardstick."""
