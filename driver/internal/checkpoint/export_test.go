package checkpoint

// Waiting is how many changes wait for the one that is being written.
func (s *Store) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending)
}
