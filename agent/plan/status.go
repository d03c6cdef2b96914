package plan

import corev1 "k8s.io/api/core/v1"

func (v *view) status(p *Plan) corev1.PodStatus { return v.d.Pod.Status }
func (v *view) backoffMessage(s *slot) string   { return "" }
