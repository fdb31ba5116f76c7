from fedbuff._event_queue cimport EventQueue
from fedbuff._local_sgd cimport LocalSGD
from fedbuff._server cimport DeltaBuffer, Server
