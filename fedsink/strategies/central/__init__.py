"""What the methods of the central mode share: the plan, its statement, and sums of replies."""
