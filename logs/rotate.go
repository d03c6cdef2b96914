package logs

const (
	// gz is the suffix of a compressed log, tmp of one that is being compressed.
	gz  = ".gz"
	tmp = ".tmp"
)
