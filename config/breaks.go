package config

// breaks has the settings without effect on which pods may rely. Without them a pod runs with less than it was
// promised, so nodelet does not start with them unless --accept-missing names them.
var breaks = map[string]loss{
	"qosReserved": {"QOSReserved", "the memory requests of pods are not reserved"},
}

// loss is what pods lose. The kubelet acts on the setting only with the gate.
type loss struct{ gate, text string }
