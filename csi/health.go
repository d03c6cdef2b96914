package csi

import (
	"context"
	"fmt"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
)

// Drivers for CSI before 1.13 report the condition of a volume with its usage: with this capability, in this field of
// NodeGetVolumeStatsResponse. CSI 1.13 has removed both and reserves their numbers. Such drivers are in use, and
// Kubernetes 1.36 reads nothing else.
const (
	volumeCondition      csipb.NodeServiceCapability_RPC_Type = 4
	volumeConditionField protowire.Number                     = 2
)

// Condition is a driver's judgement of a volume.
type Condition struct {
	Abnormal bool
	Message  string
}

// condition returns the condition of a volume whose usage its driver has reported, nil if the driver does not report
// it.
func (d *driver) condition(ctx context.Context, asked *csipb.NodeGetVolumeStatsRequest,
	got *csipb.NodeGetVolumeStatsResponse) (*Condition, error) {
	switch {
	case d.can(csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH):
		return d.health(ctx, asked)
	case d.can(volumeCondition):
		return parseCondition(got.ProtoReflect().GetUnknown())
	}
	return nil, nil
}

// health asks a driver for CSI 1.13. A volume without a reported problem is healthy.
func (d *driver) health(ctx context.Context, asked *csipb.NodeGetVolumeStatsRequest) (*Condition, error) {
	r := &csipb.NodeGetVolumeHealthRequest{
		VolumeId:          asked.VolumeId,
		VolumePublishPath: asked.VolumePath,
		StagingTargetPath: asked.StagingTargetPath,
	}
	got, err := call(ctx, d, "NodeGetVolumeHealth", d.node.NodeGetVolumeHealth, r)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range got.GetVolumeHealth().GetHealthStatuses() {
		text := s.GetStatus().String() + " " + s.GetReason()
		if s.GetMessage() != "" {
			text += ": " + s.GetMessage()
		}
		all = append(all, text)
	}
	return &Condition{Abnormal: len(all) > 0, Message: strings.Join(all, "; ")}, nil
}

// parseCondition reads VolumeCondition of CSI 1.12, which has two fields: 1, a bool, and 2, a string. Without one the
// volume is healthy.
func parseCondition(unknown []byte) (*Condition, error) {
	c := &Condition{}
	err := eachField(unknown, func(n protowire.Number, raw []byte, _ uint64) error {
		if n != volumeConditionField {
			return nil
		}
		return eachField(raw, func(n protowire.Number, raw []byte, number uint64) error {
			switch n {
			case 1:
				c.Abnormal = number != 0
			case 2:
				c.Message = strings.ToValidUTF8(string(raw), "\uFFFD")
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("volume_condition of NodeGetVolumeStats: %w", err)
	}
	return c, nil
}

// eachField calls do for each field of a message; raw is the content of one that has a length, number that of a varint.
func eachField(message []byte, do func(n protowire.Number, raw []byte, number uint64) error) error {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var raw []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			raw, size = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(message)
		default:
			size = protowire.ConsumeFieldValue(n, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		if err := do(n, raw, number); err != nil {
			return err
		}
	}
	return nil
}
