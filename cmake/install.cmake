# What `cmake --install` installs besides the command line: libferry, libferry_cann and libferry_plan, their headers,
# and the files by which CMake and pkg-config find them. `make deb` makes Debian packages of the same files.
include(CMakePackageConfigHelpers)

install(TARGETS ferry EXPORT ferryTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
foreach(name cann plan)
  install(TARGETS ferry_${name} EXPORT ferryTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name} NAMELINK_COMPONENT development)
endforeach()
install(DIRECTORY include/ferry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

# find_package(ferry) gives ferry::ferry, ferry::cann and ferry::plan.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ferry)
install(EXPORT ferryTargets NAMESPACE ferry:: FILE ferryConfig.cmake DESTINATION ${package_dir}
        COMPONENT development)
write_basic_package_version_file(ferryConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ferryConfigVersion.cmake DESTINATION ${package_dir}
        COMPONENT development)

# pkg-config --cflags --libs ferry, ferry-cann or ferry-plan; paths are relative to the file, so that the prefix can
# move.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(name ferry ferry-cann ferry-plan)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
endforeach()

# libferry0.2, libferry-cann0.2, libferry-plan0.2, libferry-dev for the three, and ferry-tools. UCX is loaded at run
# time, so nothing links it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the ferry developers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL library cann plan development tools)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libferry${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS libucx0)
set(this_version "(= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libferry-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${CPACK_DEBIAN_LIBRARY_PACKAGE_NAME} ${this_version}")
foreach(name cann plan)
  string(TOUPPER ${name} NAME)
  set(package libferry-${name}${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  set(CPACK_DEBIAN_${NAME}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${NAME}_PACKAGE_DEPENDS "${CPACK_DEBIAN_LIBRARY_PACKAGE_NAME} ${this_version}")
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", ${package} ${this_version}")
endforeach()
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src)  # where shlibdeps finds libferry
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME ferry-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS libucx0)

# Installs the licences of ferry and of what is compiled in, which scripts/deb.sh writes, where Debian expects them.
set(packages library libferry development libferry-dev tools ferry-tools cann libferry-cann plan libferry-plan)
while(packages)
  list(POP_FRONT packages component package)
  if(component MATCHES "library|cann|plan")
    string(APPEND package ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  endif()
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
          COMPONENT ${component} OPTIONAL EXCLUDE_FROM_ALL)
endwhile()
include(CPack)
