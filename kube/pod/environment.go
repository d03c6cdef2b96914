package pod

import corev1 "k8s.io/api/core/v1"

// EnvironmentObjects returns the names of the ConfigMaps and Secrets that the environment of a container refers to, in
// the order of the spec. A name may occur more than once.
func EnvironmentObjects(c *corev1.Container) (configMaps, secrets []string) {
	for i := range c.EnvFrom {
		if s := c.EnvFrom[i].ConfigMapRef; s != nil {
			configMaps = append(configMaps, s.Name)
		}
		if s := c.EnvFrom[i].SecretRef; s != nil {
			secrets = append(secrets, s.Name)
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		if s := from.ConfigMapKeyRef; s != nil {
			configMaps = append(configMaps, s.Name)
		}
		if s := from.SecretKeyRef; s != nil {
			secrets = append(secrets, s.Name)
		}
	}
	return configMaps, secrets
}

// ServicesNamespace returns the namespace of the services whose addresses are in the environment of a pod.
func ServicesNamespace(pod *corev1.Pod) string {
	if links := pod.Spec.EnableServiceLinks; links != nil && !*links {
		return corev1.NamespaceDefault // the service of the API server is always there
	}
	return pod.Namespace
}
