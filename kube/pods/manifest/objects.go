package manifest

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// prepareConfigMap changes a ConfigMap of a manifest into what the API server would store.
func prepareConfigMap(c *corev1.ConfigMap) error {
	c.TypeMeta, c.ObjectMeta = metav1.TypeMeta{}, clean(c.ObjectMeta)
	errs := checkMeta(&c.ObjectMeta)
	data := field.NewPath("data")
	for k := range c.Data {
		errs = append(errs, checkDataKey(k, data)...)
		if _, twice := c.BinaryData[k]; twice {
			errs = append(errs, field.Invalid(field.NewPath("binaryData").Key(k), k, "the key is also in data"))
		}
	}
	for k := range c.BinaryData {
		errs = append(errs, checkDataKey(k, field.NewPath("binaryData"))...)
	}
	return errs.ToAggregate()
}

// prepareSecret changes a Secret of a manifest into what the API server would store: stringData is moved into data.
func prepareSecret(s *corev1.Secret) error {
	s.TypeMeta, s.ObjectMeta = metav1.TypeMeta{}, clean(s.ObjectMeta)
	orElse(&s.Type, corev1.SecretTypeOpaque)
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
	errs := checkMeta(&s.ObjectMeta)
	for k := range s.Data {
		errs = append(errs, checkDataKey(k, field.NewPath("data"))...)
	}
	return errs.ToAggregate()
}

// checkDataKey checks that a key can be a file name.
func checkDataKey(key string, path *field.Path) (errs field.ErrorList) {
	for _, msg := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path.Key(key), key, msg))
	}
	return errs
}
