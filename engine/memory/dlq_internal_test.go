package memory

// Snap makes a snapshot now.
func (d *DeadLetters) Snap() error { return d.snap() }
