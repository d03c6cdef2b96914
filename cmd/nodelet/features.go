package main

// declaredFeatures are what this agent can do that the scheduler must know of before it sends a pod here
// (node.status.declaredFeatures, KEP-5328), sorted.
func declaredFeatures() []string {
	return []string{
		"InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}
}
