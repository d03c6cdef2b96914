package plan

import "github.com/nodelet/nodelet/agent/podstate"

// The names of package podstate as the scripts, the simulation and its rules use them.
type (
	Desired        = podstate.Desired
	Rejection      = podstate.Rejection
	Stop           = podstate.Stop
	StopCause      = podstate.StopCause
	Grant          = podstate.Grant
	ContainerGrant = podstate.ContainerGrant
	PendingResize  = podstate.PendingResize
	Size           = podstate.Size
	Observed       = podstate.Observed
	Node           = podstate.Node
	Sandbox        = podstate.Sandbox
	Container      = podstate.Container
	ContainerState = podstate.ContainerState
	Verdict        = podstate.Verdict
	ProbeResult    = podstate.ProbeResult

	Memory   = podstate.Memory
	Failure  = podstate.Failure
	Hook     = podstate.Hook
	Instance = podstate.Instance
	Result   = podstate.Result
	Problem  = podstate.Problem

	Step            = podstate.Step
	Key             = podstate.Key
	Prepare         = podstate.Prepare
	PrepareClaims   = podstate.PrepareClaims
	Mount           = podstate.Mount
	CreateSandbox   = podstate.CreateSandbox
	EnsureImage     = podstate.EnsureImage
	CreateContainer = podstate.CreateContainer
	StartContainer  = podstate.StartContainer
	PostStart       = podstate.PostStart
	PreStop         = podstate.PreStop
	StopContainer   = podstate.StopContainer
	RemoveContainer = podstate.RemoveContainer
	NoteReset       = podstate.NoteReset
	StopSandbox     = podstate.StopSandbox
	RemoveSandbox   = podstate.RemoveSandbox
	Resize          = podstate.Resize
	ResizePod       = podstate.ResizePod
	Unmount         = podstate.Unmount
	UnprepareClaims = podstate.UnprepareClaims
	RemoveCgroup    = podstate.RemoveCgroup
	RemoveDir       = podstate.RemoveDir
)

const (
	StopEvicted  = podstate.StopEvicted
	StopDeleted  = podstate.StopDeleted
	StopOrphaned = podstate.StopOrphaned

	ContainerCreated = podstate.ContainerCreated
	ContainerRunning = podstate.ContainerRunning
	ContainerExited  = podstate.ContainerExited
	ContainerUnknown = podstate.ContainerUnknown

	ProbeUnknown = podstate.ProbeUnknown
	ProbeSuccess = podstate.ProbeSuccess
	ProbeFailure = podstate.ProbeFailure
)

var (
	NewMemory    = podstate.NewMemory
	Overtakes    = podstate.Overtakes
	identity     = podstate.Identity
	newest       = podstate.Newest
	lost         = podstate.Lost
	asksForReset = podstate.AsksForReset
)
