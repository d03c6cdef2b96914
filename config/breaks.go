package config

// breaks has the settings without effect on which pods may rely, with what is missing. Without them a pod runs with
// less than it was promised, so nodelet does not start with them unless --accept-missing names them.
var breaks = map[string]string{
	"qosReserved": "the memory requests of pods are not reserved",
}
