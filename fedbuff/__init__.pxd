from fedbuff._server cimport DeltaBuffer, Server
