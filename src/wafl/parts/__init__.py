"""What the parts of a method are made of: base classes, messages, the schedule; it knows none of the parts."""
